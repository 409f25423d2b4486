"""Policy at work: commands judged, rules edited, tried and followed."""
