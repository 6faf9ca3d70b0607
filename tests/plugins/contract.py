"""`mpirun -np 2 python -m mpi4py -m tests.plugins.contract`: the strategy contract, by a strategy
from outside the package.
"""

from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.testing.strategy_contract import strategy_contract
from tests.plugins.mpi_strategy import MPISettings, MPIStrategy

strategy_contract(lambda: MPIStrategy(MPISettings(name="mpi4py", chunk_mb=0.0005), detect_launch()))
print("contract kept")
