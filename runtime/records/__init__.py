"""The write path and what it rests on: load, decide, append; contents, references, exposures."""
