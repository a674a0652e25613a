"""Tables, figures and reports of runs, next to the paper's numbers."""
