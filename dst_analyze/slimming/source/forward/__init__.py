"""The text of each ``forward``: from the nodes of a graph to statements and loops."""
