"""Ops that move elements and change none: transpose, space_to_depth, depth_to_space, concat."""
