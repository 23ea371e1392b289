"""Tests; the folder of a test is its marker."""
