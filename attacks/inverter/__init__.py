"""Components for a regression from gradients to examples."""
