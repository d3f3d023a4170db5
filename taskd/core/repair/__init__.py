"""How a repair is decided and led: incidents, the ladder of strategies, attempts, and the ranks they wait for."""
