"""What no attacker can exceed, or what one who knows more than any attacker would reach."""
