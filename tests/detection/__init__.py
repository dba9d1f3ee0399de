"""Every check proven able to fail: faults injected, found, and rightly blamed."""
