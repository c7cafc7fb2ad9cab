"""The job: its model, its rank grids, the collectives that it runs and the bytes that they move."""
