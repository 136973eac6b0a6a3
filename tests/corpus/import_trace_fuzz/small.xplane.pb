
p/device:GPU:0"Stream #7(x)"¨F ""	k"cuLaunchKernel*correlation_id
f	/host:CPUpython"èÐ""	k"cuLaunchKernel*correlation_id