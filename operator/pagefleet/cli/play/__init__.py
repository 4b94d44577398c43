"""`pagefleet play`: InferenceServices on this machine, with local processes in place of pods.

manifests  files → what is wanted            (reads files)
division   how many replicas the machine's memory holds (pure)
local_plan what the planner says of a replica here (reads headers)
scaling    replicas' reports → the autoscaler's decision (pure)
plan       wanted + running → start, stop    (pure)
leaving    which replica leaves first        (pure)
replica    one replica's phases and back-off (pure)
view       what people see of a service      (pure)
child      what an engine process does first, so that it never outlives play
process    one engine process and its log
runner     keeps one replica running
fleet      keeps all services as wanted; tells the router who is ready
holding    requests that wait for a service to wake
router     one URL in front of all replicas; server runs it
screen     shows a live table, or reports events as lines
ask        one streamed question
run        puts it together
"""
