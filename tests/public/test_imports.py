"""Imports between modules, those inside functions included."""

import grimp
import networkx as nx


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("dst_analyze", exclude_type_checking_imports=True)
    edges = [(module, to) for module in graph.modules for to in graph.find_modules_directly_imported_by(module)]
    assert len(edges) > 1000  # grimp has read the package
    assert list(nx.simple_cycles(nx.DiGraph(edges))) == []
