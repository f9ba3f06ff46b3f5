"""Parts that compare a candidate's gradient with the reading."""
