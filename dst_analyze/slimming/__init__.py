"""Stage 5: a traced model becomes a smaller one. `coupling` says which channels belong together, `build` removes some,
`source` writes what is left as a file; which ones should go is not decided here yet."""
