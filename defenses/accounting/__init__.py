"""Privacy accounting: pure functions of (σ_t, q, steps, δ); no torch."""
