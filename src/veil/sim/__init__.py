"""The simulator: many real nodes in one process, with virtual time and one seed."""

from veil.sim.plot import plot_run_svg, plot_svg
from veil.sim.simulate import Point, Result, Sweep, run, sweep
from veil.sim.world import Scenario, Split

__all__ = ["Point", "Result", "Scenario", "Split", "Sweep", "plot_run_svg", "plot_svg", "run", "sweep"]
