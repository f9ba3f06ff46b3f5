"""Privacy accounting: pure functions which compute ε from noise multipliers, sampling rates, step counts and δ; no
torch.
"""
