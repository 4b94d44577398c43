"""`pagefleet play`: InferenceServices on this machine, with local processes in place of pods.

manifests  files → what is wanted            (reads files)
plan       wanted + running → start, stop    (pure)
replica    one replica's phases and back-off (pure)
view       what people see of a service      (pure)
child      what an engine process does first, so that it never outlives play
process    one engine process and its log
runner     keeps one replica running
fleet      keeps all services as wanted; tells the router who is ready
router     one URL in front of all replicas; server runs it
screen     shows a live table, or reports events as lines
ask        one streamed question
run        puts it together
"""
