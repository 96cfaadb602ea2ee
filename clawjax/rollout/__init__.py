"""Rollouts: one (`run`) and many (`fleet`)."""
