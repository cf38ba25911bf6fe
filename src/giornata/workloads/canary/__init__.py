"""The workload kind `canary`: a trial of the machine itself. No model, no data, no artifacts; some seconds."""
