"""Objectives: examples → batches → loss as (sum, count) → metrics → predictions. A task knows no family by name."""
