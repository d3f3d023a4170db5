"""How a repair is decided and led: incidents, the ladder of strategies, attempts, and whom they wait for."""
