"""A small app with the layout of Flower's quickstart apps."""
