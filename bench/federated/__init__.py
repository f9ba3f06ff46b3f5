"""The federated pipeline: local training, the defense's stages in order, and a tap after each."""
