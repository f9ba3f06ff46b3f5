"""The federated pipeline: local training and the defense's stages, in order, with readings for attackers."""
