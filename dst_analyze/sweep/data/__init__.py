"""Whatever a user gives as data becomes `Batches`."""
