"""How wrong the simulator is against measurements that it has not seen."""
