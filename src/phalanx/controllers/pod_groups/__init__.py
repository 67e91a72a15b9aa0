"""Groups: made for those who name a template, protected while somebody refers to them, counted."""
