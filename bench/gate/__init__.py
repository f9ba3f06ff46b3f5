"""Has a defense become weaker?"""
