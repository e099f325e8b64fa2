"""Stage 5: a traced model and a ranking become a smaller architecture. Its ground is laid; its work is not here yet."""
