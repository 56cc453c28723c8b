"""The simulator: many real nodes in one process, with virtual time and one seed."""

from veil.sim.plot import plot_run_svg, plot_svg
from veil.sim.simulate import Point, Result, Scenario, Split, Sweep, run, sweep

__all__ = ["Point", "Result", "Scenario", "Split", "Sweep", "plot_run_svg", "plot_svg", "run", "sweep"]
