//! Ranks, nodes, local ranks and representatives.
