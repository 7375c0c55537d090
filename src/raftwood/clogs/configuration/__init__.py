"""A ring's configuration: its text, where it is kept, and how clients hear of changes."""
