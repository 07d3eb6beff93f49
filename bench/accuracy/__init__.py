"""Accuracy, reproduced: the zoo on real graphs against published figures and against PyG."""
