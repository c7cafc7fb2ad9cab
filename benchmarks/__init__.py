"""placer and its peers on the same generated pools, by the same objective, in the same run.

``python -m benchmarks`` from the repository's root; README.md, "Benchmarks", says how to read what comes out.
Generators (`pools`) write ordinary scenario files, placer runs as the real command, and every peer reads the same
scenario through placer's own reader. All placements, placer's too, are judged by `placer.problem.evaluate` and
`violations`.
"""
