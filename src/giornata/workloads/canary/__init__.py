"""The workload kind `canary`: a trial of the machine, in seconds, without model or data. Read `workload` first."""
