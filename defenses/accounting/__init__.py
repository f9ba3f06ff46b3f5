"""Privacy accounting: pure functions that compute ε from noise, sampling rates, step counts and δ; no torch."""
