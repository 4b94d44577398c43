"""Layers as plain functions over weights: what a model file is written with."""
