"""Python imports this first on a node that passes for one with a GPU: see `test_ray_gpus`."""

from tunewright.codegen.cuda import device
from tunewright.codegen.gpu import KNOWN

setattr(device, "devices", lambda: [device.Device(0, "a simulated GPU", KNOWN["sm_90a"])])  # noqa: B010
