"""Parts for the attack on texts by gradients' row spaces."""
