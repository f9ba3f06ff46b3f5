"""Attacks (import name `bench.attacks`): modules hold registered attacks, subfolders the components that attacks
share."""
