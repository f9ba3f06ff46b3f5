"""Privacy accounting: pure functions which compute ε from noise, sampling rates, step counts and δ; no torch."""
