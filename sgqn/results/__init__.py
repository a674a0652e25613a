"""From runs to evidence: the paper's numbers, statistics over runs."""
