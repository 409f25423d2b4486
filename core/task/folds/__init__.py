"""What each kind of fact does to the record of a task, by what it is about."""
