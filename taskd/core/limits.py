"""Every bound of the control plane, in one place.

A queue, a retry, a message or a wait without a bound ends in an outage one day. So each bound is named here, with its
unit and the reason for its size. The core, the wire and the shells read these numbers. Nothing here is configuration:
the settings of a user are in taskd.config, and they are checked against these bounds.
"""

from __future__ import annotations

MS = 1_000_000
SECOND = 1_000_000_000

# ---- sizes of a job -------------------------------------------------------------------------------------------
MAX_RANKS = 131_072
"""More than the largest job the control plane is simulated with (100,000 ranks)."""
MAX_NODES = 16_384
MAX_RANKS_PER_NODE = 64
"""Up to this number, one scan of a node's beat page takes less than a microsecond."""
MAX_INCARNATION = 1_000_000
MAX_LIVES = 1 << 12
"""New incarnations of a rank that a manager accepts in one report without remembering them. A larger leap is a mistake,
and would use up all incarnation numbers."""
MAX_EPOCH = 2**31 - 1
MAX_LEAP = 1 << 20
"""A manager that has lost its journal learns the numbers that only grow from its agents. It accepts no larger leap at
once: each start of a manager is one term, each try of a repair one epoch, each change of a rail one order."""
FORGOTTEN_EPOCHS = 1 << 6
MAX_FORGOTTEN_EPOCHS = MAX_LIVES - 4 * FORGOTTEN_EPOCHS
"""A manager that has lost its journal, and all who could tell it the last epoch, leaves out FORGOTTEN_EPOCHS for each
term of the job. It leaves out less than MAX_LIVES, since a rank that was never heard of takes such an epoch for its
next incarnation."""
MAX_STEP = 2**62
MAX_PID = 2**22
"""PID_MAX_LIMIT of Linux."""

# ---- texts and messages ---------------------------------------------------------------------------------------
MAX_NAME = 128
"""Names of jobs, nodes, hosts."""
MAX_TEXT = 1_024
"""A sentence: a reason, an error. The code that makes a longer sentence cuts it."""
MAX_MESSAGE_BYTES = 8 << 20
"""One message on the wire; larger ones are refused before they are parsed."""
MAX_REPLY_TEXT = 8 << 20
"""One answer to an operator's question, as JSON."""
STATUS_ROWS = 2_048
"""Ranks, and nodes, in one answer about the state of the job. For the others the operator asks again. The manager does
nothing else while it makes an answer, which takes some 20 ms."""
KEY_BYTES = 32
ASKS_MAX = 4_096
"""Requests for the job's key (wire/exchange.py). Every node sends one. A process that may write into the store may send
one, too."""

# ---- the job's store ------------------------------------------------------------------------------------------
MAX_STORE_KEY = 1_024
MAX_STORE_VALUE = 1 << 20
MAX_STORE_ITEMS = 65_536
"""Keys and values of one operation."""
MAX_STORE_OPERATION = MAX_MESSAGE_BYTES - (1 << 10)
"""All keys and values of one operation, with 5 bytes of framing each. This is the room that a message has for them."""
MAX_STORE_BYTES = 256 << 20
"""All keys and values together: the manager holds them in memory."""
MAX_STORE_KEYS = 1 << 20
STORE_KEY_OVERHEAD = 64
"""Bytes that a key costs beside its own, so that a million empty values count as well."""
MAX_STORE_CLIENTS = 4_096
"""Connections to one node's store: each clone of a store in each worker has its own."""
STORE_REPEAT_NS = 1 * SECOND
"""A node asks again after this time. While it waits for a key, the time between two requests grows up to the next
bound."""
STORE_REPEAT_MAX_NS = 8 * SECOND
STORE_LEASE_NS = 30 * SECOND
"""A wait ends when its node has not repeated it for this long: the node's agent is gone."""
MAX_STORE_LIVES = 2 * MAX_NODES
"""Agents whose last operations are remembered, so that a repeated operation is not applied twice."""

# ---- copies of data that only one rank has ----------------------------------------------------------------------
RECORD_SLOTS = 5
"""Slots of a rank's local record: three for steps, two for its ledger."""
MAX_COPY = 64 << 20
"""One slot of a rank's local record. A larger slot is not copied, so the rank does not survive the loss of
its node."""
MAX_SETUP_COPY = 72 << 20
"""The record of one rank's set-up, which holds at most 64 MiB of results."""
SETUP_PIECE = 1 << 20
"""The record travels in pieces. A piece is known by its digest, so data that several ranks share is kept once. Slots of
local records come back in such pieces, too."""
MAX_SETUP_PIECES = MAX_SETUP_COPY // SETUP_PIECE
MAX_COPY_PIECES = RECORD_SLOTS * MAX_COPY // SETUP_PIECE
SETUP_PIECES_AT_ONCE = 4
"""Pieces sent before the sender waits for an answer. Supervision shares the manager with them."""
DIGEST_BYTES = 32
MAX_COPIES_BYTES = 1 << 30
"""All copies that one node keeps for others: it holds them in memory."""
COPY_REPEAT_NS = 250 * MS
"""An offer or a question without an answer is sent again after this time."""
KEEPER_PATIENCE_NS = 3 * SECOND
"""A keeper of copies that did not answer for this long is given up, and the next keeper is tried."""
KEEPER_ABSENT_NS = 300 * MS
"""The same, if no process listens at the keeper's address."""
DEADLINE_COPY_NS = 30 * SECOND
"""How long a newcomer waits for the records of its rank's former life."""

# ---- rails ------------------------------------------------------------------------------------------------------
MAX_RAILS = 16
"""Rails of one process."""
MAX_TRANSPORTS = 4
"""Transports of one process that have rails."""
MAX_RAIL_NAME = 31
MAX_RAIL_REPORTS = 256
"""Rails by peer node in one report. The others come with the next report."""
MAX_RAIL_RECORDS = 16_384
"""Rails by peer node that are kept for one node. csrc/rail/counters.hpp has as many records for one process."""
MAX_ERRNO = 4_095
RAIL_NEWS_NS = 10 * SECOND
"""For this long after its state has changed, a rail is reported with every beat, so that traffic on it is seen at
once."""

RAIL_CONFIRM_NS = 250 * MS
"""A line counts as lost once reports have called it lost for this long. The transport has moved the traffic already. A
shorter time is not enough: the connections of a process that dies break on all rails, one after the other."""
RAIL_ALL_CONFIRM_NS = 2 * SECOND
"""When all rails between two nodes break at once, one of the nodes has probably died. The detector gets this long to
find out."""
RAIL_GATHER_NS = 500 * MS
"""Lines of one rail that are lost, or have proved themselves, within this time are one event."""
RAIL_PROBES = 3
"""A line that was lost has to be up in this many reports before it is used again."""
RAIL_QUIET_NS = 2 * SECOND
"""It has to be up for this long, too. The time doubles each time the rail is lost again, up to the next bound."""
RAIL_BACK_OFF_MAX_NS = 300 * SECOND
RAIL_STEADY_NS = 60 * SECOND
"""When a rail has carried traffic for this long after its return, its back-off begins anew."""
RAIL_FOLLOW_NS = 10 * SECOND
"""How long ranks may take to follow a rail order. After that they are named, and the next order gets its turn."""
RAIL_VERIFY_NS = 5 * SECOND
RAIL_VERIFY_BYTES = 16 << 20
"""A rail that was put back goes out again if it carries nothing while the others carry this many bytes for each pair of
ranks, for RAIL_VERIFY_NS. Fewer bytes may well use the others alone, since small messages take the quickest rail."""
RAIL_IDLE_NS = 60 * SECOND
"""A job that sends nothing for this long proves nothing. A rail that was put back stays in use, unproved."""
RAIL_ROUND_NS = 100 * MS
"""The shortest time between two decisions to lend a rail or to take it back: each needs a look at all lines."""
RAIL_SWEEP_NS = 2 * SECOND
"""The time between two looks at lines that are not well and that no report names."""
RAIL_STALE_NS = 60 * SECOND
"""A line that no report has named for this long is no longer used."""

# ---- proofs that replicas are alike -----------------------------------------------------------------------------
PROOF_UNITS = 1_024
"""Units that a rank's state is divided into, so that a difference can be named. A state with more parts than that has
several parts in one unit."""
PROOF_UNIT_BYTES = 1 << 20
"""Bytes of a tensor that are digested in one piece. Pieces are larger only where there would be too many units."""
PROOF_SLICE_BYTES = 1 << 20
"""Bytes that one step digests: some 0.1 ms at the speed of memory."""
PROOF_SHARE = 2_000
"""A proof may take one part in 2,000 of the time of the steps that it stands for: 0.05 %, half of what is promised."""
PROOF_MEASURES = 15
"""The duration of a step, and of a proof, is the median of this many."""
PROOF_FIRST_COST_NS = 500_000
"""The assumed cost of a slice, before one was digested."""
PROOF_PERIOD_NS = 100 * MS
"""The shortest time between two proofs, however short the steps are: at most one message for each beat of an agent, for
each PROOF_RANKS ranks of the job."""
PROOF_RANKS = 64
PROOF_SELDOM = 1 << 20
"""Updates between two slices, at most."""
PROOF_REPAIRED = 2
"""Updates after a repair whose whole state is compared: a wrong repair shows after the first one."""
PROOF_LAYOUTS = 256
"""Ways to divide a state that are remembered. A script that creates more optimizer state gets another layout."""
PROOF_KEPT = 8
"""Proofs of different updates that are open at once. Beyond that, the oldest is judged by the ranks that have sent
theirs."""
PROOF_SENT = 8
"""Proofs of one rank that wait for the next beat of its node. Beyond that, the oldest is dropped."""
DIGEST_WORD = 8
"""Bytes of a digest."""
PROOF_HALF = 32
"""The bits of the lower half of a layout's number."""
PROOF_NAMES = 1 << 16
"""Characters for the names of all units of a proof."""
MAX_PROOFS = 8 * MAX_RANKS_PER_NODE
PROOF_STARTS_OVER = 3
"""How often a difference may start the job over. A machine with damaged memory would start it over for ever."""

# ---- rhythm ---------------------------------------------------------------------------------------------------
FULL_REPORT_NS = 2 * SECOND
"""Time between two full reports. The reports between them carry only what changed. A full report repairs the effect of
any lost message."""
ORDER_REPEAT_NS = 250 * MS
"""An order that is not yet followed is sent again after this time. A lost message costs this much and no more."""
TICK_NS = 200 * MS
"""The manager looks at its clock at least this often. Otherwise it could not tell its own sleep from silence."""
LINGER_NS = 5 * SECOND
"""A side agent whose workers have all ended waits this long for new workers, or for the manager to know."""
STOP_GRACE_NS = 5 * SECOND
"""How long a worker may take to end by itself when the job stops. After that its agent ends it."""
AWAY_NS = 5 * SECOND
"""An agent that is this late for its own tick was stopped, or got no processor. It reports that."""
ABANDONED_NS = 60 * SECOND
"""A launcher gives the job up after this long without a manager, if a worker is dead or ranks are in a repair."""
UNMET_NS = 600 * SECOND
"""A spare that has never met a manager leaves after this."""
RESTART_FORGOTTEN_NS = 3_600 * SECOND
"""One replacement of a rank no longer counts for each time that the rank has lived this long after it."""
RESTART_SOON_NS = 60 * SECOND
RESTART_STEPS = 3
"""A start of a rank came to nothing if the rank died within RESTART_SOON_NS, before the job had made RESTART_STEPS."""
RESTARTS_AT_ONCE = 2
RESTART_PAUSE_NS = 1 * SECOND
RESTART_PAUSE_MAX_NS = 10 * SECOND
"""A rank whose last RESTARTS_AT_ONCE starts came to nothing rests before the next one. Each further rest is twice as
long, up to RESTART_PAUSE_MAX_NS: whatever is wrong may need time to pass, and all ranks park for each start. It is less
than a failed operation waits for a repair (recover.unrepaired_ms): before a start over no rank is parked."""
MAX_KEPT_EVIDENCE = 64
"""Evidence that an agent keeps while it has no connection. Beyond that, the oldest is dropped."""
MAX_KEPT_LIVES = 8
"""Former lives of one node's agent that are remembered, so that their late messages are recognized."""
MAX_UNHEARD_SENDERS = 1_024
"""Refused senders are counted one by one up to this number, then together."""

# ---- the detector ---------------------------------------------------------------------------------------------
SILENCE_FLOOR_NS = 600 * MS
"""No node is suspected sooner, however steady its rhythm is: a busy machine may stop any process this long."""
SILENCE_CEILING_NS = 1_500 * MS
"""No node is trusted longer, however unsteady its rhythm is."""
SILENCE_ALONE_NS = 30 * SECOND
"""Silence without a second witness counts as death only after this."""
WITNESS_NS = 10 * SECOND
"""How long the word of a witness (a lost connection, a broken collective) stays valid."""
MAX_KEPT_LATE = 64
"""Late operations that are remembered, so that each is reported once. Beyond that, the oldest is dropped."""
SLEPT_NS = 400 * MS
"""A larger gap of the manager's own clock means that the manager slept, not the nodes."""

# ---- a job that stands still --------------------------------------------------------------------------------------
STILL_NS = 600 * MS
"""A rank that has made no progress for this long is inspected and reported."""
STILL_LOOK_NS = 250 * MS
STILL_REPEAT_NS = 1 * SECOND
"""A node repeats which of its ranks are still after this time, and at once when something has changed."""
STILL_STOPPED_REPEAT_NS = 100 * MS
"""The same, if one of these ranks is stopped from outside."""
STILL_STOPPED_NS = 800 * MS
"""A rank that a signal or a debugger has stopped while the job stands still is named after this time. Nothing usual
looks like this."""
STILL_STOPPED_SEEN_NS = 200 * MS
"""It has to be stopped for this long, because tools that read a stack stop a process for a moment."""
STILL_ASLEEP_NS = 5 * SECOND
"""Allowed for a rank that others wait for and that does nothing. Every script has pauses of some seconds: a request to
a slow server, a name that has to be looked up."""
STILL_GIL_NS = 5 * SECOND
"""Allowed for a rank that lets no other thread of its interpreter run. To pack or to free large objects takes
seconds."""
STILL_BLOCKED_NS = 10 * SECOND
"""Allowed for a rank that is blocked in the kernel: it writes to a disk, or gets memory back from swap."""
STILL_TOGETHER_NS = 15 * SECOND
"""Allowed where all ranks wait in one operation, or for each other: the network may have a pause, too."""
STILL_WORKS_NS = 30 * SECOND
"""Allowed for a rank that others wait for and that works: an evaluation, a checkpoint, a table that is built."""
STILL_COMPILES_NS = 600 * SECOND
STILL_UNKNOWN_NS = 120 * SECOND
"""Allowed while the job's rhythm is not known yet. A rank that works is not named at all during this time."""
STILL_STOPPED_REPLACED_NS = 2 * SECOND
"""A rank that a signal has stopped for this long while the job stands still is given up."""
STILL_FACTOR = 5
"""Allowed in any case: this many times the longest pause in such a phase that the job has come out of by itself."""
STILL_WARM_STEPS = 5
"""Steps of an epoch before its rhythm is known. Their pauses teach nothing, because caches are filled in them."""
STILL_JUDGE_NS = 50_000
"""The shortest time between two looks at the job, for each of its ranks. A look takes a quarter of that at most."""
MAX_PLACES = 60
"""Groups of one rank: a beat page has as many slots."""

# ---- devices ------------------------------------------------------------------------------------------------------
MAX_DEVICES = 1_024
"""Devices of one node."""
MAX_DEVICE_EVENTS = 64
"""Different events of a node's devices that are remembered. Beyond that, the oldest is dropped."""
MAX_DEVICE_PIDS = 256
"""Processes that use one device."""
DEVICE_REPEAT_NS = 5 * SECOND
"""A node repeats what its devices have reported after this time."""
DEVICE_AGAIN_NS = 60 * SECOND
"""An event of a device that comes again is noted again after this time."""
DEVICE_NEAR_NS = 60 * SECOND
"""An event that a process does not survive is the reason of a death within this time. Work on a device is asynchronous,
so the script may see the error later."""
DEVICE_DAMAGED_NS = 1_800 * SECOND
"""The same for an event after which the device has to be reset. A process may hang for as long as torch waits for an
operation, and only then die of it."""

# ---- pauses -----------------------------------------------------------------------------------------------------
PAUSE_MAX_NS = 7_200 * SECOND
"""No operator may name a longer time at once. The original has the same bound."""
PAUSE_PROMISE_NS = 5 * SECOND
"""A rank that has told its step begins no other one for this long. The manager needs one answer of every rank."""
PAUSE_ROUNDS = 4
"""How often all ranks are asked for a step, if ranks pass it again and again."""

# ---- errands ----------------------------------------------------------------------------------------------------
ERRAND_LEASE_NS = 60 * SECOND
"""How long all ranks may take to come to a stand for an errand, and stand for it. Most steps are far shorter."""
ERRAND_LEAVE_NS = 30 * SECOND
"""How long the launcher of a vacated node may take to end. It has no rank any more."""
MAX_KEPT_ERRANDS = 32
"""How many requests are remembered, so that none of them is followed twice."""

# ---- incidents and repairs ------------------------------------------------------------------------------------
MAX_ATTEMPTS = 3
"""Tries of one strategy before the next one of the ladder is taken. The death of a rank that was healthy until then is
no failed try: the strategy did not cause it, and each rank can die like that only once in an incident. Tries in which
only lost ranks start again use up no restart, and to start all over loses what was trained, so there are several."""
MAX_OPEN_INCIDENTS = 64
MAX_POLICY_COUNT = 10_000
"""The largest limit of restarts that a policy may have, and how many starts of one rank are remembered for it."""
MAX_POLICY_RULES = 256
MAX_POLICY_SECONDS = 10_000_000
"""The longest time in a policy: 115 days."""
MAX_KEPT_INCIDENTS = 1_024
MAX_KEPT_EVENTS = 4_096
GATHER_NS = 50 * MS
"""Deaths within this time after a decision are answered together. The time is four times as long after each further
try."""
COMPILES_NS = 1 * SECOND
"""A rank that has compiled for this long while a repair waits for it is named."""
REFUSAL_NS = 250 * MS
"""When a rank cannot follow a stage, the death of another rank is often the cause. The manager waits this long for the
report of that death."""
SETTLE_NS = 1 * SECOND
"""Before any training, the manager waits this long after a death for more: a script that fails at its start fails on
every rank."""
LEAVE_NS = 300 * MS
"""When a rank ends with exit code 0 inside a step, the manager waits this long for the others. A script may end all of
its ranks in this way."""
MAX_INCIDENT_NOTES = 64
DEADLINE_QUIESCE_NS = 60 * SECOND
"""A survivor may be in the middle of a long forward. This deadline and the following ones are for ranks that show no
work at all. core/repair/patience.py says how the deadlines move."""
DEADLINE_SETUP_NS = 300 * SECOND
"""A newcomer runs the whole set-up of the user: imports, model, data."""
LONGEST_STAGE_NS = 1_800 * SECOND
"""The longest wait for a rank that works, or that may hold the last whole state. torch itself waits this long for an
operation. Three of the job's own steps are allowed even if they take longer."""
DEADLINE_REBUILD_NS = 30 * SECOND
DEADLINE_RESTORE_NS = 120 * SECOND
DEADLINE_SAVE_NS = 120 * SECOND
DEADLINE_RESUME_NS = 30 * SECOND
DEADLINE_REDO_NS = 300 * SECOND
"""The first step after a repair may take as long as any step. It only closes the record."""
DEADLINE_SPARE_NS = 20 * SECOND
"""How long the ranks of a lost node wait for a spare node, unless the user sets another time
(recover.spare_wait_ms)."""
DEADLINE_MUSTER_NS = 20 * SECOND
"""If a launcher is here and a rank was still never seen after this time, no other launcher is going to start it.
Launchers have met before the first of them speaks to the manager."""
HEAR_NS = 2 * SECOND
"""A manager that is back hears all nodes before it decides, for this long at most. Each node tells everything when it
connects."""
DEADLINE_RETURN_NS = 120 * SECOND
"""When every rank is gone and the launcher is not ours, it may take this long to bring them back. Then the job is
over."""

# ---- the check of nodes -------------------------------------------------------------------------------------------
CHECK_ROUNDS = 4
"""Rounds of tests, at most. What is open after them is undecided."""
CHECK_ALL_PAIRS = 8
"""Up to this number of nodes everyone tests everyone in the first round, so that links are named, too."""
CHECK_TURNS = 2
"""Turns of a round. There are up to CHECK_MORE_TURNS if few nodes are cleared, since these are in demand."""
CHECK_MORE_TURNS = 4
CHECK_PARTNERS = 4
"""A node that can be heard is found guilty by this many partners. In small jobs it takes all there are."""
CHECK_NOWHERE = 3
"""A rail that works between no two nodes is at fault itself if so many pairs, of more nodes than that, say so."""
CHECK_GOOD = 2
"""A node is healthy once it has passed with this many partners, or with all there are."""
CHECK_SELF_NS = 5 * SECOND
CHECK_PAIR_NS = 2 * SECOND
"""How long a node's test of itself, and a test of two nodes, may take. A test takes some 0.1 s where all is well."""
CHECK_SLOW_PERCENT = 150
"""A time this many percent of the usual one is slow, if it is CHECK_SLOW_SPREADS standard deviations longer, too."""
CHECK_SLOW_SPREADS = 6
CHECK_AT_ODDS = 2
"""Two times of one thing that differ by more than this factor contradict each other."""
CHECK_SILENT_SECONDS = 3_600.0
"""The time of a node that has failed, in the lines that users know."""
CHECK_MOST_NS = 3_600 * SECOND
"""A longer time in an answer is none."""
CHECK_FRESH_NS = 3_600 * SECOND
"""A check of this age still says something about the hardware."""
