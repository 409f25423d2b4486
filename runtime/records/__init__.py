"""The write path and its parts: load, decide, append; contents, references, exposures."""
