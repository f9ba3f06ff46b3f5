"""Parts of a regression from gradients to examples."""
