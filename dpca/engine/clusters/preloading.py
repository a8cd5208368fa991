"""Imported first by the process from which workers are forked: it ends with its program, also during its imports."""

from dpca.engine.clusters.forking import LAST
from dpca.engine.clusters.parent import end_with_parent

end_with_parent(LAST)
