"""Answers to approval requests, and the lists of those that wait for one."""
