"""Every bound of the control plane, in one place.

A queue, a retry, a message or a wait without a bound is an outage waiting for its day, so each one is
named here with its unit and the reason for its size. The core, the wire and the shells read these numbers;
nothing here is configuration (what a user may change stands in taskd.config and is checked against these).
"""

from __future__ import annotations

MS = 1_000_000
SECOND = 1_000_000_000

# ---- sizes of a job -------------------------------------------------------------------------------------------
MAX_RANKS = 131_072
"""More than the largest job the control plane is simulated with (100,000 ranks)."""
MAX_NODES = 16_384
MAX_RANKS_PER_NODE = 64
"""One beat page scan per node stays below a microsecond up to here."""
MAX_INCARNATION = 1_000_000
MAX_LIVES = 1 << 12
"""Of a rank's at once, that a manager does not remember: a number beyond is a mistake, and would use them all up."""
MAX_EPOCH = 2**31 - 1
MAX_LEAP = 1 << 20
"""A manager that has lost its journal learns numbers that only grow from its agents, but no leap beyond this at once:
each start of a manager is one term, each try of a repair one epoch, each change of a rail one order."""
MAX_STEP = 2**62
MAX_PID = 2**22
"""Linux' own PID_MAX_LIMIT."""

# ---- texts and messages ---------------------------------------------------------------------------------------
MAX_NAME = 128
"""Names of jobs, nodes, hosts."""
MAX_TEXT = 1_024
"""A sentence: a reason, an error. Longer ones are cut by whoever makes them."""
MAX_MESSAGE_BYTES = 8 << 20
"""One message on the wire; larger ones are refused before they are parsed."""
MAX_REPLY_TEXT = 8 << 20
"""One answer to an operator's question, as JSON."""
STATUS_ROWS = 2_048
"""Ranks, and nodes, in one answer about how the job stands; whoever wants more asks on. The manager does nothing else
while it makes one: that takes some 20 ms."""
KEY_BYTES = 32
ASKS_MAX = 4_096
"""Who asks for the job's key (wire/exchange.py): every node does once. Who may write into the store may ask, too."""

# ---- the job's store ------------------------------------------------------------------------------------------
MAX_STORE_KEY = 1_024
MAX_STORE_VALUE = 1 << 20
MAX_STORE_ITEMS = 65_536
"""Keys and values of one operation."""
MAX_STORE_OPERATION = MAX_MESSAGE_BYTES - (1 << 10)
"""All keys and values of one operation, with 5 bytes of framing each: what is left of a message for them."""
MAX_STORE_BYTES = 256 << 20
"""All keys and values together: the manager holds them in memory."""
MAX_STORE_KEYS = 1 << 20
STORE_KEY_OVERHEAD = 64
"""What a key costs beside its bytes, so that a million empty values count as well."""
MAX_STORE_CLIENTS = 4_096
"""Connections to one node's store: each clone of a store in each worker has its own."""
STORE_REPEAT_NS = 1 * SECOND
"""A node asks again after this; what waits for a key asks ever more seldom, up to the following."""
STORE_REPEAT_MAX_NS = 8 * SECOND
STORE_LEASE_NS = 30 * SECOND
"""A wait that its node did not repeat for this long is over: the node's agent is gone."""
MAX_STORE_LIVES = 2 * MAX_NODES
"""Agents whose last operations are remembered, so that a repeated one is not applied twice."""

# ---- copies of what only one rank has ---------------------------------------------------------------------------
RECORD_SLOTS = 5
"""Of a rank's local record: three for steps, two for its ledger."""
MAX_COPY = 64 << 20
"""One slot of a rank's local record. A larger one stays on its node, and the rank does not survive that."""
MAX_SETUP_COPY = 72 << 20
"""The record of one rank's set-up, which has at most 64 MiB of results."""
SETUP_PIECE = 1 << 20
"""It travels in pieces that are known by their digest, so that what several ranks were told is kept once. Slots of
local records come back in such pieces, too."""
MAX_SETUP_PIECES = MAX_SETUP_COPY // SETUP_PIECE
MAX_COPY_PIECES = RECORD_SLOTS * MAX_COPY // SETUP_PIECE
SETUP_PIECES_AT_ONCE = 4
"""Pieces sent before an answer is awaited: supervision shares the manager with them."""
DIGEST_BYTES = 32
MAX_COPIES_BYTES = 1 << 30
"""All copies that one node keeps for others: it holds them in memory."""
COPY_REPEAT_NS = 250 * MS
"""An offer or a question that is not answered is said again."""
KEEPER_PATIENCE_NS = 3 * SECOND
"""A keeper of copies that did not answer for this long is given up for the next one."""
KEEPER_ABSENT_NS = 300 * MS
"""And one at whose place nobody listens, for this long."""
DEADLINE_COPY_NS = 30 * SECOND
"""How long a newcomer waits for the records of the life before."""

# ---- rails ------------------------------------------------------------------------------------------------------
MAX_RAILS = 16
"""Rails of one process."""
MAX_TRANSPORTS = 4
"""Of one process, that have rails."""
MAX_RAIL_NAME = 31
MAX_RAIL_REPORTS = 256
"""Rails by peer node in one report; what does not fit comes with the next one."""
MAX_RAIL_RECORDS = 16_384
"""Rails by peer node that are kept of one node: csrc/rail/counters.hpp has as many records for one process."""
MAX_ERRNO = 4_095
RAIL_NEWS_NS = 10 * SECOND
"""A rail whose state has changed is reported with every beat for so long, so that traffic on it is seen at once."""

RAIL_CONFIRM_NS = 250 * MS
"""The transport has moved the traffic already; a lost line is believed once it was lost in reports for so long, since a
process that dies takes its connections on all rails along, one after the other."""
RAIL_ALL_CONFIRM_NS = 2 * SECOND
"""All rails between two nodes at once look like the death of one of them: that is left to the detector for so long."""
RAIL_GATHER_NS = 500 * MS
"""Lines of one rail that are lost, or have proved themselves, within so long are one event."""
RAIL_PROBES = 3
"""Reports in which a line that was lost is up again, before it is used again."""
RAIL_QUIET_NS = 2 * SECOND
"""And for so long; doubled each time it is lost again, up to the following."""
RAIL_BACK_OFF_MAX_NS = 300 * SECOND
RAIL_STEADY_NS = 60 * SECOND
"""A rail that carried for so long after its return has atoned: its back-off begins anew."""
RAIL_FOLLOW_NS = 10 * SECOND
"""How long ranks may take to follow a rail order before they are named, and the next order gets its turn."""
RAIL_VERIFY_NS = 5 * SECOND
RAIL_VERIFY_BYTES = 16 << 20
"""Other rails carry so much for each pair of ranks, for so long, and one that was put back carries nothing: it goes out
again. Less than that may well go over the others alone, since small messages take the quickest rail."""
RAIL_IDLE_NS = 60 * SECOND
"""A job that sends nothing for so long proves nothing either: a rail that was put back stays, unproved."""
RAIL_ROUND_NS = 100 * MS
"""Whether rails are lent or come back is judged at most so often: it takes a look at all lines."""
RAIL_SWEEP_NS = 2 * SECOND
"""Lines that are not well are looked at so often also where no report names them."""
RAIL_STALE_NS = 60 * SECOND
"""A line that no report has named for so long is no longer used."""

# ---- proofs that replicas are alike -----------------------------------------------------------------------------
PROOF_UNITS = 1_024
"""Parts that a rank's state is divided into, so that a difference can be named; what has more is put together."""
PROOF_UNIT_BYTES = 1 << 20
"""Of a tensor, and more only where there would be too many units: what is digested at a stretch."""
PROOF_SLICE_BYTES = 1 << 20
"""What one step digests: some 0.1 ms at the speed of memory."""
PROOF_SHARE = 2_000
"""A proof may take this part of the time of the steps that it stands for: 0.05 %, half of what is promised."""
PROOF_MEASURES = 15
"""Steps, and proofs, whose median is what one takes."""
PROOF_FIRST_COST_NS = 500_000
"""Of a slice, before one was digested."""
PROOF_PERIOD_NS = 100 * MS
"""However short the steps: no more than one message for each beat of an agent, and so many ranks as follows."""
PROOF_RANKS = 64
PROOF_SELDOM = 1 << 20
"""Updates between two slices, at most."""
PROOF_REPAIRED = 2
"""Updates after a repair whose whole state is compared: what was put together wrongly shows after the first one."""
PROOF_LAYOUTS = 256
"""Ways to divide a state that are remembered: a script that makes more optimizer state has another one."""
PROOF_KEPT = 8
"""Proofs of different updates that are open at once; the oldest is judged by whoever has told it."""
PROOF_SENT = 8
"""Proofs of one rank that wait for its node's next beat; the oldest goes first."""
DIGEST_WORD = 8
"""Bytes of a digest."""
PROOF_NAMES = 1 << 16
"""Characters for the names of all units of a proof."""
MAX_PROOFS = 8 * MAX_RANKS_PER_NODE
PROOF_STARTS_OVER = 3
"""How often a difference may start the job over. A machine that damages what it holds would do so for ever."""

# ---- rhythm ---------------------------------------------------------------------------------------------------
FULL_REPORT_NS = 2 * SECOND
"""Reports between two full ones carry just what changed; a full one heals whatever a lost message left behind."""
ORDER_REPEAT_NS = 250 * MS
"""An order that is not yet followed is said again: a lost message costs this and no more."""
TICK_NS = 200 * MS
"""The manager looks at its clock at least this often, or a sleep of its own could not be told from silence."""
LINGER_NS = 5 * SECOND
"""A side agent whose workers have all ended waits this long for others to come, or for the manager to know."""
STOP_GRACE_NS = 5 * SECOND
"""How long a worker may take to end when the job stops, before it is ended."""
AWAY_NS = 5 * SECOND
"""An agent that is so late for its own tick was stopped, or got no processor: it says so."""
ABANDONED_NS = 60 * SECOND
"""A launcher with a dead worker, or with ranks in a repair, and no manager to decide gives the job up after this."""
UNMET_NS = 600 * SECOND
"""A spare that has never met a manager leaves after this."""
RESTART_FORGOTTEN_NS = 3_600 * SECOND
"""A rank that has lived for so long since it was replaced has one more replacement left than it had then."""
MAX_KEPT_EVIDENCE = 64
"""Evidence that an agent keeps while it has no connection; the oldest goes first."""
MAX_KEPT_LIVES = 8
"""Former lives of one node's agent that are remembered, so that their late messages are known as such."""
MAX_UNHEARD_SENDERS = 1_024
"""Senders that were refused are counted one by one up to here, then together."""

# ---- the detector ---------------------------------------------------------------------------------------------
SILENCE_FLOOR_NS = 600 * MS
"""No node is suspected sooner, however steady its rhythm: a busy machine may stop any process this long."""
SILENCE_CEILING_NS = 1_500 * MS
"""And none is trusted longer, however unsteady its rhythm."""
SILENCE_ALONE_NS = 30 * SECOND
"""Silence without a second witness counts as death only after this."""
WITNESS_NS = 10 * SECOND
"""How long a witness' word (a lost connection, a broken collective) stays good."""
MAX_KEPT_LATE = 64
"""Late operations that are remembered, so that each is said once; the oldest go first."""
SLEPT_NS = 400 * MS
"""A gap of the manager's own clock beyond this means that the manager slept, not the nodes."""

# ---- a job that stands still --------------------------------------------------------------------------------------
STILL_NS = 600 * MS
"""A rank without progress for so long is looked at more closely, and told of."""
STILL_LOOK_NS = 250 * MS
STILL_REPEAT_NS = 1 * SECOND
"""Which ranks are still is said again after so long, and at once when something of it has changed."""
STILL_STOPPED_REPEAT_NS = 100 * MS
"""Where one of them is stopped from outside."""
STILL_STOPPED_NS = 800 * MS
"""A rank that a signal or a debugger has stopped while the job stands still is named after this: nothing that is usual
looks like it."""
STILL_STOPPED_SEEN_NS = 200 * MS
"""But it has to be so for this long, for tools that read a stack stop a process for a moment."""
STILL_ASLEEP_NS = 5 * SECOND
"""One that others wait for and that does nothing. Every script has pauses of some seconds: a request to a server that
answers late, a name that has to be looked up."""
STILL_GIL_NS = 5 * SECOND
"""One that lets no other thread of its interpreter on. Large objects that are packed or swept up take seconds."""
STILL_BLOCKED_NS = 10 * SECOND
"""One that the kernel keeps: a disk that is written out, memory that comes back from swap."""
STILL_TOGETHER_NS = 15 * SECOND
"""All wait in one operation, or for each other: the network may have a pause, too."""
STILL_WORKS_NS = 30 * SECOND
"""One that others wait for and that works: an evaluation, a checkpoint, a table that is built."""
STILL_COMPILES_NS = 600 * SECOND
STILL_UNKNOWN_NS = 120 * SECOND
"""While the job's rhythm is not known yet. One that works is then not named at all."""
STILL_STOPPED_REPLACED_NS = 2 * SECOND
"""One that was stopped by a signal for so long while the job stands still is given up."""
STILL_FACTOR = 5
"""And in any case so many times the longest pause that the job has had in such a phase, and come out of by itself."""
STILL_WARM_STEPS = 5
"""Steps of an epoch before its rhythm is known; their pauses teach nothing, for caches are filled in them."""
STILL_JUDGE_NS = 50_000
"""For each rank of the job: it is looked at so seldom at most, since a look takes a hundredth of that."""
MAX_PLACES = 60
"""Groups of one rank, as many as a beat page has slots for."""

# ---- incidents and repairs ------------------------------------------------------------------------------------
MAX_ATTEMPTS = 3
"""Tries of one strategy before the ladder is climbed. The death of a rank that was well until then is no failed try:
the strategy had no part in it, and each rank can cause that but once in an incident."""
MAX_OPEN_INCIDENTS = 64
MAX_KEPT_INCIDENTS = 1_024
MAX_KEPT_EVENTS = 4_096
GATHER_NS = 50 * MS
"""Deaths that follow a decision sooner than this (four times as long after each further try) are answered together."""
COMPILES_NS = 1 * SECOND
"""A rank that compiles for so long since a repair began to wait for it is named."""
REFUSAL_NS = 250 * MS
"""When a rank cannot follow a stage, another one's death is often the cause: its report is awaited this long."""
SETTLE_NS = 1 * SECOND
"""Before anything was trained, a death waits this long for others: a script that fails at start fails on every rank."""
LEAVE_NS = 300 * MS
"""When a rank ends with exit code 0 inside a step, this long is waited for the others: a script may end all so."""
MAX_INCIDENT_NOTES = 64
DEADLINE_QUIESCE_NS = 60 * SECOND
"""A survivor may be in the middle of a long forward. This deadline and the following ones are for ranks that show no
work at all; core/repair/patience.py says how they move."""
DEADLINE_SETUP_NS = 300 * SECOND
"""A newcomer runs the whole of the user's set-up: imports, model, data."""
LONGEST_STAGE_NS = 1_800 * SECOND
"""So long one is waited for that works, or that may hold the last whole state: torch itself waits so long for an
operation. Three of the job's own steps are allowed even where they take longer."""
DEADLINE_REBUILD_NS = 30 * SECOND
DEADLINE_RESTORE_NS = 120 * SECOND
DEADLINE_RESUME_NS = 30 * SECOND
DEADLINE_REDO_NS = 300 * SECOND
"""The first step after a repair: as long as a step may last, it closes the record only."""
DEADLINE_SPARE_NS = 20 * SECOND
"""How long a lost node's ranks wait for a spare node to appear, unless the user has said so (recover.spare_wait_ms)."""
DEADLINE_MUSTER_NS = 20 * SECOND
"""A launcher is here and a rank was never seen: after this, nobody else is going to start it. Launchers have met before
the first of them speaks to the manager."""
HEAR_NS = 2 * SECOND
"""A manager that is back hears all nodes before it decides, so long at most: each tells everything when it connects."""
DEADLINE_RETURN_NS = 120 * SECOND
"""Every rank is gone and the launcher is not ours: how long it may take to bring them back before the job is over."""
