"""The regression gate: has a defense become weaker than in an earlier run?"""
