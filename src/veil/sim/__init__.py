"""The simulator: many nodes in one process, the real ones, under virtual time and one seed."""

from veil.sim.plotting import plot_run_svg, plot_svg
from veil.sim.running import Point, Result, Sweep, run, sweep
from veil.sim.scenario import Scenario, Split

__all__ = ["Point", "Result", "Scenario", "Split", "Sweep", "plot_run_svg", "plot_svg", "run", "sweep"]
